"""Colors for the values of the STATUS column."""

COLORS = {
    "Pending": "yellow",
    "Starting": "light-blue",
    "Running": "green",
    "Recovering": "orange",
    "Suspended": "purple",
    "Completed": "blue",
    "Failed": "red",
}
