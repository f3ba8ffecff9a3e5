"""The models of a server: which there are, who has them open, and how their answers are sent."""
