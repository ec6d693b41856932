"""What a search asks of a model: assignments probed on blocks of documents."""
