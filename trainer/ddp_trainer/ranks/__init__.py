"""Communication between ranks: environment, process group, collectives, and their failures."""
