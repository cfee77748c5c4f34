// norms
