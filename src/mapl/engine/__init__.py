"""Engines: how many clients learn fast on one device. None knows which method it runs."""
