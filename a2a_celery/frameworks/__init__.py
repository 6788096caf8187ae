"""Agents of other frameworks, each as that framework makes them; a module here needs the extra of its name.

What such an agent remembers goes with its A2A context, on whichever worker its next turn runs.
"""
