"""`python -m infinistore.server`."""

from infinistore.server import main

main()
