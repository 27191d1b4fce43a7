"""What a study is: settings, an outcome, checks of claims, and what all studies share."""
