"""One package a stage; `steps.core` is the ground floor that all of them stand on."""
