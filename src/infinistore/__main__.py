"""`python -m infinistore`."""

from infinistore.cli import main

main()
