"""More replicas, and replicas elsewhere: how many there are to be, and on which machines."""
