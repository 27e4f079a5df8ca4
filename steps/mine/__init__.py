"""Mine training triplets from the click log: one-hop, multi-hop by query association, hard negatives."""
