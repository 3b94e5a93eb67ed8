"""A cluster simulated: the decisions of its nodes with as many nodes as nobody has at hand."""
