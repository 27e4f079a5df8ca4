"""What finds and orders documents before there is an index: BM25, exact search, rankers. Stages share it."""
