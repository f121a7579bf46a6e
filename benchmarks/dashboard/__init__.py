"""The dashboard's bars, on generated stores."""
