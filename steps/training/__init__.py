"""What the stages that train share: several processes that train one model, the library's trainer, and triplets."""
