"""Beyond LLaMA, and beyond one core: what notebooks 07 to 09 add.

    families       today's open models as edits of LLaMA (08)
    fast_decode    the model laid out for one-token steps (07)
    parallel       one model over several processes (09)

A plain LLaMA needs none of it: no file of `helpers` imports anything from here.
"""
