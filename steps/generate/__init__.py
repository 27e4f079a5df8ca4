"""Stage `generate`: new queries from the training queries, by BART denoising."""
