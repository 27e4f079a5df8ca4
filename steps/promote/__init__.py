"""Step `promote`: a release becomes the champion that is served, if it is no worse than the one it would replace."""
