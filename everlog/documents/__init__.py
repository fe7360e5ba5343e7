"""Documents and collections: conditional writes, filters, indexes, views, history."""
