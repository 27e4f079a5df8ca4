"""What finds and orders documents before there is an index, and tells whether one order is no worse than another."""
