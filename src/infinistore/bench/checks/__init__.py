"""What `infinistore bench --check` holds against targets: each check finds lines, one a target."""
