// embedding
