"""What the stages that train share: several processes that train one model, and what starts them."""
