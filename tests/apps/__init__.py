"""Small federations for the tests: ordinary Flower apps, each with the one line added."""
