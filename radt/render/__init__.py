"""Reports as people and programs read them: terminal, Markdown, HTML, CSV, JSON."""
