"""Simulated deployments: their engines, the cost of their steps, and their faults and scaling.

A deployment is made of plain values; command lines and notebooks translate their options into them
(`sundog/builds/simulated.py`).

    hardware = Target(load_model("llama-3.1-8b"), load_gpu("h100"))
    config = EngineConfig(SchedulerConfig(max_model_len=8192), replicas=2)
    engines = deployed(hardware, config, model="llama-3.1-8b", machine="h100", assumed=Assumed())
    deployment = scaling(engines, {None: Keda()}, ScalingTerms(least=1))

`record` is the deployment, `engines` makes one of equal engines, `pools` joins several, `fleet` adds faults,
scalers and moves of requests. To extend deployments, add a function from one to another beside these.
"""
