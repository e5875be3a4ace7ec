"""`python -m memplane` is `memplane`."""

from memplane.cli import main

if __name__ == "__main__":
    main()
