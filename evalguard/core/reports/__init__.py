"""What finished commands have found: the records that are shown, stored and sent."""
