"""A peer: one client as a long-lived process of its own. Who it is, and whom it believes."""
