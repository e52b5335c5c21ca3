"""Models as they are served: requests until they are answered, replicas, versions, what is told of them."""
