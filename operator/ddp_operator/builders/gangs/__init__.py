"""What each gang scheduler needs of a job: a group object, and marks on the pods."""
