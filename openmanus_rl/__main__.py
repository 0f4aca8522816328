"""`python -m openmanus_rl` is the `openmanus-rl` command."""

from openmanus_rl.cli.app import main

if __name__ == "__main__":
    main()
