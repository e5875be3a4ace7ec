"""Documentation for users, and the program that writes its generated pages (`make docs`)."""
