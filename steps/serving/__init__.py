"""What runs at query time, without torch: the query encoder, a release and its checks, reading an index."""
