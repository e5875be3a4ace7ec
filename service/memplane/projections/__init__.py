"""What Milvus and Neo4j hold of the truth: clients, generations, and the targets that outbox workers drive."""
