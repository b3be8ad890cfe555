"""Who runs next: a pure core that takes facts and answers with orders. Standard library only."""
