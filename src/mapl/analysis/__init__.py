"""What runs mean: comparison with their control arms, clusters, embeddings."""
