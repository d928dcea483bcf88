"""`python -m ddp_agent`."""

from ddp_agent.main import main

if __name__ == "__main__":
    main()
