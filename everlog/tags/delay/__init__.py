"""Reading views by tag that others write: nobody says how far they are, so a delay and a search for gaps must do."""
