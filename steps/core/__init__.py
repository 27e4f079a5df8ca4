"""What three or more rooms of steps share: tables, texts, params, measures, leakage, files of vectors."""
