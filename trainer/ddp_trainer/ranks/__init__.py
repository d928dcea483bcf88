"""How processes meet: environment, process group, collectives, and their failures."""
