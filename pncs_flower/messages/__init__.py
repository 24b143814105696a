"""What servers and clients both do with Flower's messages; nothing else here needs Flower."""
