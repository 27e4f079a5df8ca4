"""Read every configured source into one corpus, its queries, judgements, sessions and rejects."""
