"""`evalguard plan`: how many documents, before they are scored."""
