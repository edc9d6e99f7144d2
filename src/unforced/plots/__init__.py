"""Pictures that need no run: of schedules, and of what relaxing an argmax does to a loss."""
