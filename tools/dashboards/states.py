"""Colors of the values of STATUS."""

COLORS = {
    "Pending": "yellow",
    "Starting": "light-blue",
    "Running": "green",
    "Recovering": "orange",
    "Suspended": "purple",
    "Completed": "blue",
    "Failed": "red",
}
