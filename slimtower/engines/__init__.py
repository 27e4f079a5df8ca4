"""Deploy a release into a vector engine that is run already, and let its alias move there and back."""
