"""What strangers try: project folders, archives, servers and models that want more than they were given."""
