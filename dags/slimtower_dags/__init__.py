"""What the DAGs are made of: the graph, the deployment's settings and one operator a runner."""
