"""Search plugins: `native` (keywords in PostgreSQL) and `hybrid` (vectors, keywords and relations, fused)."""
