"""WebShop: its catalogue files, its search, its pages."""
